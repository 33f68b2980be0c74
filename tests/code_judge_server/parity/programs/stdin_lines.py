import sys
for number, line in enumerate(sys.stdin):
    print(number, repr(line))
print(repr(sys.stdin.readline()), repr(sys.stdin.read()))
