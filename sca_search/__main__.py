"""`python -m sca_search` is `sca-search`."""

from sca_search.cli import main

main()
