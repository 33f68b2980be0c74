import queue, threading
tasks, results = queue.Queue(), []
def work():
    while (item := tasks.get()) is not None:
        results.append(item * 2)
        tasks.task_done()
worker = threading.Thread(target=work)
worker.start()
for n in range(5): tasks.put(n)
tasks.join()
tasks.put(None)
worker.join()
print(results)
