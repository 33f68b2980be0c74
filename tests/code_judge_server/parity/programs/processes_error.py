import multiprocessing
def work():
    raise ValueError("in the child")
if __name__ == "__main__":
    process = multiprocessing.Process(target=work, name="Worker")
    process.start()
    process.join()
    print(process.exitcode, multiprocessing.active_children(), multiprocessing.current_process())
