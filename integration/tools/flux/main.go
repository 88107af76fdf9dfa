// A Helm repository in the lab: serves a folder with HTTPS.
package main

import (
	"log"
	"net/http"
	"os"
)

func main() {
	if len(os.Args) != 5 {
		log.Fatalf("usage: %s ADDRESS FOLDER CERTIFICATE KEY", os.Args[0])
	}
	log.Fatal(http.ListenAndServeTLS(os.Args[1], os.Args[3], os.Args[4], http.FileServer(http.Dir(os.Args[2]))))
}
