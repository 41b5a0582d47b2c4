"""Switches: what is on, with which options, and how to get from here to there.

The state of the package is one immutable :class:`Config`. Enabling, disabling and
leaving a ``with`` block all mean: go to that Config.

What a switch does is its row in the table of :mod:`pai_torchacc._features`.
"""

from pai_torchacc._switch.exclusion import Exclusion as Exclusion
from pai_torchacc._switch.exclusion import exclude as exclude
from pai_torchacc._switch.handle import Handle as Handle
from pai_torchacc._switch.handle import disable as disable
from pai_torchacc._switch.handle import disabled as disabled
from pai_torchacc._switch.handle import disabler as disabler
from pai_torchacc._switch.handle import enable as enable
from pai_torchacc._switch.handle import enable_one as enable_one
from pai_torchacc._switch.state import current as current
from pai_torchacc._switch.state import forget_numerics as forget_numerics
from pai_torchacc._switch.state import furthest_numerics as furthest_numerics
from pai_torchacc._switch.state import is_active as is_active
from pai_torchacc._switch.state import locked as locked
from pai_torchacc._switch.state import reason as reason
from pai_torchacc._switch.state import status as status
from pai_torchacc._switch.state import when_asked as when_asked
