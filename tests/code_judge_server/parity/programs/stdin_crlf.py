import sys
print([line for line in sys.stdin], sys.stdin.newlines)
