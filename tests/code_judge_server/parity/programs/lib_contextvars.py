import contextvars, threading
var = contextvars.ContextVar("var", default=0)
def work(): print(var.get())
var.set(5)
threading.Thread(target=work).start()
contextvars.copy_context().run(work)
print(var)
