//! Hostile cases, each by its name: what broke other caches.

mod cases {
    mod backing_dies;
    mod flush_ends;
    mod idle;
    mod resized;
}
