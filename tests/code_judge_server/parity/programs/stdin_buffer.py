import sys
data = sys.stdin.buffer.read()
print(len(data), data[:5], sum(map(int, data.split())))
