"""Record a command in a terminal of 80 columns as an animated picture: python docs/builder/recording.py writes docs/recording.svg.

The command runs for real. The frames are screens of its output at equal distances in time. Their clock is not the run's.
"""

import fcntl
import html
import os
import pty
import select
import shlex
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path

import pyte

COMMAND = "fedskew study --dataset heart --minutes 1"
ROWS, COLUMNS, FRAMES, SECONDS = 36, 80, 9, 0.7
CELL, LINE = 8.0, 17
LIGHTS = ("#ff5f57", "#febc2e", "#28c840")
COLOURS = {
    "default": "#d6dbe1", "black": "#5b636e", "red": "#ff7b72", "green": "#56d364", "brown": "#e3b341", "blue": "#79c0ff",
    "magenta": "#d2a8ff", "cyan": "#56d4dd", "white": "#ffffff", "brightblack": "#8b949e",
}  # fmt: skip


def screens(command: list[str], folder: str) -> list[pyte.Screen]:
    """Every screen that the command shows, as it is after each piece of output."""
    program, terminal = pty.fork()
    if program == 0:
        os.chdir(folder)
        os.execvpe(
            command[0], command, {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
        )
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    screen = pyte.Screen(COLUMNS, ROWS)
    stream, seen, last = pyte.ByteStream(screen), [], 0.0
    while True:
        select.select([terminal], [], [], 1)
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:
            break
        if not data:
            break
        stream.feed(data)
        if time.monotonic() - last > 0.2:
            seen.append(drawn(screen))
            last = time.monotonic()
    os.waitpid(program, 0)
    return [*seen, drawn(screen)]


def drawn(screen: pyte.Screen) -> str:
    """The screen as SVG text, one element for each run of equal colours."""
    lines = []
    for row in range(ROWS):
        cells, start = screen.buffer[row], 0
        while start < COLUMNS:
            end, look = start, style(cells[start])
            while end < COLUMNS and style(cells[end]) == look:
                end += 1
            text = "".join(cells[k].data for k in range(start, end))
            if text.strip():
                left = start + len(text) - len(text.lstrip())
                shown = html.escape(text.strip())
                width = f' textLength="{len(text.strip()) * CELL:g}"'
                lines.append(f'<text x="{left * CELL + 12:g}" y="{(row + 1) * LINE + 40}"{look}{width}>{shown}</text>')
            start = end
    return "".join(lines)


def style(cell: pyte.screens.Char) -> str:
    colour = COLOURS.get(cell.fg, f"#{cell.fg}" if len(cell.fg) == 6 else COLOURS["default"])
    return ("" if colour == COLOURS["default"] else f' fill="{colour}"') + (' font-weight="bold"' if cell.bold else "")


def picture(frames: list[str]) -> str:
    """An animation that shows each frame in turn and rests on the last one. Without animation the last one is seen."""
    total = len(frames) * SECONDS + 6
    rules, groups = [], []
    for number, frame in enumerate(frames[:-1]):
        begin, end = (100 * at * SECONDS / total for at in (number, number + 1))
        hidden = f"{end + 0.01:.2f}%,100%{{opacity:0}}"
        shown = f"0%,{begin:.2f}%{{opacity:0}}{begin + 0.01:.2f}%,{end:.2f}%{{opacity:1}}"
        rules.append(f"@keyframes f{number}{{{shown}{hidden}}}")
        groups.append(f'<g opacity="0" style="animation:f{number} {total:g}s infinite">{frame}</g>')
    last = 100 * (len(frames) - 1) * SECONDS / total
    rules.append(f"@keyframes last{{0%,{last:.2f}%{{opacity:0}}{last + 0.01:.2f}%,100%{{opacity:1}}}}")
    groups.append(f'<g style="animation:last {total:g}s infinite">{frames[-1]}</g>')
    width, height = COLUMNS * CELL + 24, ROWS * LINE + 56
    lights = "".join(f'<circle cx="{18 + 18 * k}" cy="18" r="5" fill="{colour}"/>' for k, colour in enumerate(LIGHTS))
    font = "ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" fill="{COLOURS["default"]}" role="img" '
        f'aria-label="Recording of {COMMAND}">'
        f"<style>text{{font-size:13px;font-family:{font};white-space:pre}}{''.join(rules)}</style>"
        f'<rect width="{width:g}" height="{height}" rx="8" fill="#161b22"/>{lights}{"".join(groups)}</svg>\n'
    )


def prompt() -> str:
    return f'<text x="12" y="{LINE + 40}" fill="#56d364">$</text><text x="28" y="{LINE + 40}">{COMMAND}</text>'


def main() -> None:
    program, *rest = shlex.split(COMMAND)
    with tempfile.TemporaryDirectory() as folder:
        seen = screens([sys.executable, "-m", program, *rest], folder)
    chosen = [seen[round(k * (len(seen) - 2) / FRAMES)] for k in range(1, FRAMES)]
    text = picture([prompt(), *dict.fromkeys(chosen), seen[-1]])
    Path(__file__).parents[1].joinpath("recording.svg").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
