import multiprocessing
def work(queue, value, array):
    with value.get_lock():
        value.value += 1
    array[0] = 7
    queue.put("done")
if __name__ == "__main__":
    queue, value, array = multiprocessing.Queue(), multiprocessing.Value("i", 0), multiprocessing.Array("i", 3)
    processes = [multiprocessing.Process(target=work, args=(queue, value, array)) for _ in range(2)]
    for process in processes: process.start()
    print(queue.get(), queue.get())
    for process in processes: process.join()
    print(value.value, list(array), [process.exitcode for process in processes])
