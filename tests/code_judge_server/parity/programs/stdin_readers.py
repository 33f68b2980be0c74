import sys
read = sys.stdin.readline
n, m = map(int, read().split())
grid = [list(map(int, read().split())) for _ in range(n)]
print(*(sum(column) for column in zip(*grid)), sep="\n")
