"""Pure array maths that learners share."""
