"""`python -m loaderbench.testbeds` prints the commands that install what the beds need on Debian; run them as root."""

import shlex

from loaderbench.testbeds.base import install_commands

for command in install_commands():
    print(shlex.join(command))
