"""``python -m tests.golden``"""

from tests.golden import make

make()
