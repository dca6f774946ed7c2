"""The agent's settings are one list: groups that share no field, the library's among them."""

from dataclasses import asdict, fields

import pytest

from ewc.recognition import ForgetMeNot, RecognizerConfig
from ewc_paper.games.config import RECOGNIZER, AgentConfig
from ewc_paper.options import check_options, groups, values_of


def test_groups_share_no_setting_and_together_are_the_agent() -> None:
    found = groups(AgentConfig)
    assert AgentConfig not in found
    assert sum(len(fields(group)) for group in found) == len(fields(AgentConfig))


def test_the_defaults_fit_their_limits() -> None:
    check_options(AgentConfig, asdict(AgentConfig()) | RECOGNIZER)


def test_the_recognizers_settings_are_the_librarys() -> None:
    ours = values_of(RecognizerConfig, asdict(AgentConfig()))
    assert ours == asdict(RecognizerConfig()) == asdict(ForgetMeNot().config)
    with pytest.raises(ValueError, match="levels"):
        AgentConfig(levels=1)
