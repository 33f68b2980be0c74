import io, sys
sys.stdin = io.StringIO("fake\ninput\n")
print(input(), input())
