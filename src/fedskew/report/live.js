// Draws the page anew when the run store has changed; the reader's place and opened parts stay as they are.
const EVERY = 2000;
const version = () => document.body.dataset.version;
const open = () => [...document.querySelectorAll("details")].map((part) => part.open);

async function text(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(answer.statusText);
  return answer.text();
}

async function follow() {
  try {
    if ((await text("version")) !== version()) {
      const fresh = new DOMParser().parseFromString(await text("./"), "text/html");
      const [x, y, opened] = [scrollX, scrollY, open()];
      document.title = fresh.title;
      document.body.replaceWith(fresh.body);
      document.querySelectorAll("details").forEach((part, i) => (part.open = opened[i] ?? false));
      scrollTo(x, y);
    }
    document.body.classList.remove("lost");
  } catch {
    document.body.classList.add("lost");
  }
  setTimeout(follow, EVERY);
}
setTimeout(follow, EVERY);
