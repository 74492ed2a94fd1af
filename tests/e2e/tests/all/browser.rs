//! The web console in a real Chromium: `ui/tests` on the real daemon. The file name is early in the alphabet because
//! its test takes longest.

use std::path::{Path, PathBuf};
use std::process::Command;

use e2e::daemon::{binary, text_of};
use e2e::fixture::Fixture;
use e2e::http::Http;

/// Folder of the web console's source.
fn ui() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ui")
}

/// True when the page has been built; prints `SKIPPED` otherwise.
fn has_page() -> bool {
    let is_built = ui().join("dist/index.html").exists();
    if !is_built {
        eprintln!("SKIPPED: ui/dist is empty: `npm ci && npm run build` in ui/ with Node 20.19 or later");
    }
    is_built
}

#[test]
fn page_assets_are_cached_and_the_page_is_revalidated() {
    if !has_page() {
        return;
    }
    let mut fixture = Fixture::with_volume(1 << 20);
    fixture.tables = "[api]\nlisten = \"127.0.0.1:0\"".to_owned();
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    // The page is served without a login, because it contains the login form.
    let page = http.request("GET", "/", &["X-Forwarded-For: 10.0.0.7"], "");
    assert_eq!((page.status, page.header("cache-control")), (200, "no-cache"));
    let names: Vec<&str> = page.body.split(['"', '\'']).filter(|text| text.starts_with("./assets/")).collect();
    assert!(names.len() >= 2, "script and style: {}", page.body);
    for name in names {
        let asset = http.get(name.trim_start_matches('.'));
        assert_eq!((asset.status, asset.header("vary")), (200, "accept-encoding"), "{name}");
        assert!(asset.header("cache-control").contains("immutable"), "{name}: {:?}", asset.headers);
    }
    assert_eq!(http.get("/assets/none.js").status, 404);
    assert_eq!(http.get("/assets/index.html").status, 404);
    daemon.stop();
}

#[test]
fn page_passes_its_browser_tests() {
    let has_chromium = Path::new("/usr/bin/chromium").exists();
    if !has_page() || !has_chromium || !ui().join("node_modules").exists() {
        eprintln!("SKIPPED: the page's tests want /usr/bin/chromium (apt-get install chromium) and `npm ci` in ui/");
        return;
    }
    // The limit is generous, because the test waits for the browser often and the machine may be busy.
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "900", "npm", "test"]).env("HOTSET_BIN", binary()).current_dir(ui());
    let output = command.output().expect("npm runs");
    assert!(output.status.success(), "{}", text_of(&output));
}
