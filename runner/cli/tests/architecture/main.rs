//! What people are told about the code is true, and the code keeps the order that it is meant to have: one file for each
//! of these subjects. The tests only read files of the repository.

mod circles;
mod comments;
mod constants;
mod layers;
mod locks;
mod map;
mod services;
mod source;
