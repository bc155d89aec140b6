"""Study files and flags: the validated settings of a study, its candidates and schedules. Needs no torch."""
