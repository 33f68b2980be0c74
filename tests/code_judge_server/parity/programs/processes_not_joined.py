import multiprocessing, time
def work():
    time.sleep(0.1)
    print("child done", flush=True)
if __name__ == "__main__":
    multiprocessing.Process(target=work).start()
    print("main ends", flush=True)
