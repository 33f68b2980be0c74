import sys

depth = 0


def down():
    global depth
    depth += 1
    down()


try:
    down()
except RecursionError as error:
    print(depth, error)


class Loop:
    def __repr__(self):
        global depth
        depth += 1
        return repr([self])


depth = 0
try:
    repr(Loop())
except RecursionError as error:
    print(depth, error)
depth = 0
sys.setrecursionlimit(3000)
try:
    down()
except RecursionError:
    print(depth)
