"""`python -m bespokefl.cli`: the command without its script."""

from bespokefl.cli import main

main()
