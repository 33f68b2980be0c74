import threading


def hook(args):
    print("thread hook:", args.exc_type.__name__, args.exc_value, args.thread.name)


threading.excepthook = hook
thread = threading.Thread(target=lambda: [][1], name="worker")
thread.start()
thread.join()
