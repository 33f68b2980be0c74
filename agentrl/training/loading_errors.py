"""Says of a folder that transformers cannot load what is wrong with it, where transformers raises whatever comes up."""

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from agentrl.errors import ConfigError
from agentrl.training.absent_weights import named

_ARCHITECTURE = re.compile(r"configuration class <class '[\w.]*\.(\w+)Config'>")


@contextmanager
def telling_why(kind: str, path: str, *, key: str, attention: str) -> Iterator[None]:
    """Name the key and the folder where loading fails inside.

    Args:
        kind: of model, with its article.
        path: the folder, or hub name.
        key: of the config that names it.
        attention: the name of the attention that the model is to compute.

    Raises:
        ConfigError: it failed.
    """
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        refuse_incomplete(error, f"`{key}`: {path}")
        where = f"`{key}`: cannot load {kind} from {path}"
        if isinstance(error, KeyError) and error.args == (attention,):
            raise ConfigError(
                f"{where}: its architecture takes no other attention than its own ({error!r}); use another architecture"
            ) from error
        if "Unrecognized configuration class" in str(error):
            named = _ARCHITECTURE.search(str(error))
            raise ConfigError(
                f"{where}: transformers has none of its architecture{f' (`{named[1]}`)' if named else ''}. Name a folder of a "
                "decoder, such as Qwen3 or Llama"
            ) from error
        if "does not recognize this architecture" in str(error):
            raise ConfigError(
                f"{where}: this version of transformers does not know its architecture. Use another model, or a version that "
                "knows it"
            ) from error
        if "custom code" in str(error):
            raise ConfigError(
                f"{where}: its architecture is code in that folder, which is never run (`trust_remote_code`). Use an "
                "architecture that transformers has"
            ) from error
        needs_class = not isinstance(error, OSError | ValueError | RuntimeError)
        says = f"{type(error).__name__}: " if needs_class else ""
        says += " ".join(str(error).split())
        raise ConfigError(
            f"{where}: {says.rstrip('.')}. Name a folder whose `config.json` and weights transformers loads"
        ) from error


def refuse_incomplete(error: Exception, where: str) -> None:
    """Refuse a folder if `error` is that transformers could not make weights of its tensors: it stacks experts, say.

    Args:
        error: what transformers has raised.
        where: the key, and the folder that it names.

    Raises:
        ConfigError: it is; which weights.
    """
    # Neither the error nor `output_loading_info` has their names; the function that raised it does.
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    failed = getattr(frame.f_locals.get("loading_info"), "conversion_errors", None)
    if failed:
        raise ConfigError(
            f"{where} has only a part of what makes up {named(failed)}, such as some of the experts. Save the whole model "
            "with `save_pretrained`"
        ) from error
