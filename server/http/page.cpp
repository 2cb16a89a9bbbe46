#include "server/http/page.hpp"

namespace drift::server {

std::span<const PageFile> page_files() {
  static const PageFile kFiles[] = {
      {"/", "text/html; charset=utf-8", page_html()},
      {"/page.css", "text/css; charset=utf-8", page_css()},
      {"/page.js", "text/javascript; charset=utf-8", page_js()},
  };
  return kFiles;
}

void send(HttpResponse& response, const PageFile& file) {
  response.set_header("Content-Security-Policy",
                      "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
                      "base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
  response.set_header("X-Content-Type-Options", "nosniff");
  response.set_header("Referrer-Policy", "no-referrer");
  response.set_header("Cache-Control", "no-cache");  // another version of the program may answer next time
  response.set_content(file.body, file.type);
}

}  // namespace drift::server
