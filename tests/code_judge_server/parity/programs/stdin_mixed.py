import sys
print(repr(input()), repr(sys.stdin.readline()), repr(sys.stdin.buffer.readline()), repr(next(sys.stdin, None)))
