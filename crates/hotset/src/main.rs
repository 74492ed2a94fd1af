//! hotset
fn main() {}
