//! The objects of a virtual cluster against a plain `helm template`, and against the schemas of the CRDs that they have.

mod rendering;
mod schemas;
