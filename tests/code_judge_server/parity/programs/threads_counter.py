import threading
lock, total = threading.Lock(), 0
def work():
    global total
    for _ in range(1000):
        with lock:
            total += 1
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(total, threading.active_count(), threads[0].name, threading.current_thread().name, threading.main_thread().name)
