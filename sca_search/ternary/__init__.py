"""The method: parametrization, regularizer, prior and exact step; allocation of zeros; competitors."""
