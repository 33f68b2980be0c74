import sys, threading

sys.setrecursionlimit(1_000_000)
threading.stack_size(256 * 1024 * 1024)


def depth(n):
    return 0 if n == 0 else 1 + max([depth(n - 1)], key=abs)


def work():
    print(depth(20_000))


thread = threading.Thread(target=work)
thread.start()
thread.join()
