"""`python -m loaderbench.selftest` prints what installs, as root on Debian, the beds of the self-test and the tests."""

import shlex

from loaderbench.selftest.base import install_commands

for command in install_commands():
    print(shlex.join(command))
