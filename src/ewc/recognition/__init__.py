"""Which task is this? Recognizes tasks from what is observed, and notices new ones."""

from ewc.recognition.config import RecognizerConfig, ScreenRecognizerConfig
from ewc.recognition.forget_me_not import ForgetMeNot, Frozen
from ewc.recognition.screen_recognizer import FrozenScreens, ScreenRecognizer

__all__ = [
    "ForgetMeNot",
    "Frozen",
    "FrozenScreens",
    "RecognizerConfig",
    "ScreenRecognizer",
    "ScreenRecognizerConfig",
]
