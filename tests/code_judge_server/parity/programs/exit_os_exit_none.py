import os
os._exit = None
print("end")
