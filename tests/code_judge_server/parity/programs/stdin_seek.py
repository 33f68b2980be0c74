import sys
print(sys.stdin.seekable(), repr(sys.stdin.readline()), sys.stdin.seek(0), repr(sys.stdin.read()))
