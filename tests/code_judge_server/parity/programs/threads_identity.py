import os, threading
main = threading.main_thread()
print(main is threading.current_thread(), main.native_id == os.getpid(), threading.get_native_id() == os.getpid())
print(main.ident == threading.get_ident(), main.is_alive(), main.daemon, len(threading.enumerate()))
