//! The least-privilege IAM policy that a config needs.
