import logging, sys, traceback

try:
    1 / 0
except ZeroDivisionError as error:
    traceback.print_exc()
    print(traceback.format_exc())
    print(traceback.extract_tb(error.__traceback__))
    print("".join(traceback.TracebackException.from_exception(error, capture_locals=True).format()))
    logging.exception("logged")
logging.warning("with a stack", stack_info=True)
