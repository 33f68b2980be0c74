import sys
lines = sys.stdin.buffer.read().splitlines()
print(len(lines), lines[-1])
