// page.hpp - the page at /: three files that are part of the program, and the headers they are sent with.
//
// They load nothing from elsewhere and hold no data: what they show comes by /v1/drift/state, under that route's key.
#pragma once

#include <span>

#include "server/http/routes.hpp"

namespace drift::server {

struct PageFile {
  const char* path;
  const char* type;
  const char* body;
};

std::span<const PageFile> page_files();
// With headers that let the browser load and run these files only, and nobody frame them.
void send(HttpResponse& response, const PageFile& file);

// The files, from server/http/page/.
const char* page_html();
const char* page_css();
const char* page_js();

}  // namespace drift::server
