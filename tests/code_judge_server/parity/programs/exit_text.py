import sys

print("to stdout")
sys.exit("to stderr")
