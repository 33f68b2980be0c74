import threading


def work(n):
    raise ValueError(f"in thread {n}")


for n in range(2):
    thread = threading.Thread(target=work, args=(n,))
    thread.start()
    thread.join()
print("main goes on")
