import sys

sys.exit("bad \ud800 text")
