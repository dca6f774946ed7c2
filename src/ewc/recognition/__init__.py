"""Which task is this? Recognizes tasks from what is observed, and notices new ones."""

from ewc.recognition.config import RecognizerConfig
from ewc.recognition.forget_me_not import ForgetMeNot, FrozenRecognizer

__all__ = ["ForgetMeNot", "FrozenRecognizer", "RecognizerConfig"]
