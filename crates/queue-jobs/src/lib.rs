//! A queue over the job service of hostler: items are received, leased and settled.
