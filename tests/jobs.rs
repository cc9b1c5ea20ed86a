//! `hostler jobs` on a real PostgreSQL.

mod access;
mod applets;
mod callbacks;
mod commands;
mod consumers;
mod ends;
mod guests;
mod kills;
mod mistakes;
mod shapes;
mod trees;
