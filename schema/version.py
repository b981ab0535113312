"""The one dataset version.

In 0.x any change of a stored byte or of the schema is a MINOR step, a change of the card or of the encoding a PATCH.
1.0.0 will be the first published release; after it a column or its meaning moves the MAJOR.
"""

from typing import Final

DATASET_VERSION: Final = "0.3.0"
