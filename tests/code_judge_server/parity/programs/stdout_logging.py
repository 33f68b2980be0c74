import logging
logging.basicConfig(level=logging.INFO, format="%(levelname)s:%(name)s:%(funcName)s:%(filename)s:%(lineno)d:%(message)s")
logging.info("info %s", 1)
logging.getLogger("sub").warning("warning")
logging.getLogger("sub").debug("unseen")
