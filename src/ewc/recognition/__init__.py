"""Which task is this? Recognizes tasks from what is observed, and notices new ones."""

from ewc.recognition.config import RecognizerConfig, ScreenRecognizerConfig
from ewc.recognition.forget_me_not import ForgetMeNot, FrozenRecognizer
from ewc.recognition.screen_recognizer import FrozenScreenRecognizer, ScreenRecognizer

__all__ = [
    "ForgetMeNot",
    "FrozenRecognizer",
    "FrozenScreenRecognizer",
    "RecognizerConfig",
    "ScreenRecognizer",
    "ScreenRecognizerConfig",
]
