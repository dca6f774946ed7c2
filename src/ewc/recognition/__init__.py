"""Which task is this? Recognised from what is observed, and new ones noticed."""

from ewc.recognition.forget_me_not import ForgetMeNot, Frozen

__all__ = ["ForgetMeNot", "Frozen"]
